"""Floor 3: members to samples and back."""
