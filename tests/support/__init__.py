"""What several test folders share: small models and pools of gloo ranks."""
