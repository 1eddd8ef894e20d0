"""Chat templates, which turn a conversation into the text that a model was trained to continue.

A rendered text already contains the model's BOS token where the template puts it, so encode it with
`tokenizer.encode(text, add_special=False)`.
"""
