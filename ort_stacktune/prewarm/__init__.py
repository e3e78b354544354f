"""Owns pre-warming: what a manifest asks for, the order and the shares of its budget, and its being carried out."""
