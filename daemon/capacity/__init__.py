"""How much room elastic jobs have, and what waiting jobs need of it. Pure: a snapshot in, plain values out."""
