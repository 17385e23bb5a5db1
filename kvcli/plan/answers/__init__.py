"""Answers in every direction: requirements on a plan, and the plan that meets them."""
