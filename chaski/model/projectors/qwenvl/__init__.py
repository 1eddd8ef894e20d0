"""The encoders of Qwen's vision models: pictures of any size, whose rows keep their places in a grid."""
