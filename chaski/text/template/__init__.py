"""Chat templates: a conversation to the text that a model was trained to continue.

A rendered text already holds the model's BOS token where the template puts it, so it is encoded with
`tokenizer.encode(text, add_special=False)`.
"""
