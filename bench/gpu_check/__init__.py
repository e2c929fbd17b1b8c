"""What is known of a GPU after ten minutes: whether its numbers are right, how fast it is, and what would make it faster."""
