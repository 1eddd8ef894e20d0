"""The encoders of Qwen's vision models: images of any size, whose rows keep their places in a grid."""
