"""What a reader of a code scanning alert is told to do about each rule."""

from __future__ import annotations

#: id -> what to do, one or two sentences
HELP: dict[str, str] = {
    "KV001": "Lower the longest admitted length, take a narrower type for the cache or the weights, or split over more devices; "
    "the message names the smallest change that was found to fit.",
    "KV002": "Lower the longest admitted length or the memory fraction, or lower the headroom that kvcli.yaml asks for.",
    "KV003": "Lower the length to the trained positions, or configure the rope scaling that the model's authors give for longer ones.",
    "KV004": "Choose a tensor-parallel size that divides the attention heads, and the KV heads too where memory matters.",
    "KV005": "No software reaches the limit on this part: shorten the prompt, share prefixes, add devices, or raise the limit. "
    "A floor under the limit proves nothing.",
    "KV006": "No software reaches the limit on this part: take narrower weights, add devices, speculate, or raise the limit. "
    "A floor under the limit proves nothing.",
    "KV007": "Lower the context or the number of sequences, take a narrower type for the cache, or add devices.",
    "KV008": "Name a part that `kvcli devices` lists.",
    "KV009": "Give a preset, a config.json, or a model file that kvcli can read.",
    "KV010": "Choose a type for the cache that both the engine and the part support.",
    "KV011": "Lower the engine's memory fraction so that graphs and other processes have room, or raise it so that the cache has.",
    "KV012": "Undo the change, or accept it with `kvcli check --update-baseline`.",
    "KV013": "Take a part with such units, or count with the 16-bit rate: the memory is saved, the arithmetic is not. "
    "Serve in fp16 where bf16 is lacking.",
    "KV014": "Request as many GPUs as tensor-parallel times pipeline-parallel size.",
    "KV015": "Take a cheaper part, hold more sequences together, or raise the limit.",
    "KV016": "Write the argument literally, in a form that the message names, or set its value in kvcli.yaml. "
    "What the engine refuses keeps it from starting: write what it takes.",
}

#: what each rule says at its worst; the others warn, or fail under --strict
DEFAULT_LEVELS: dict[str, str] = dict.fromkeys(
    ("KV001", "KV002", "KV003", "KV004", "KV005", "KV006", "KV010", "KV011", "KV012", "KV013", "KV014", "KV015", "KV016"), "error"
)
TAGS = ("capacity", "kv-cache", "memory")
