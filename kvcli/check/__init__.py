"""The capacity gate: a capacity file and deployment manifests become plans, and plans become verdicts. No torch, no network, no clock."""
