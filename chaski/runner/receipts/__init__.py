"""Making receipts while answers are computed, and verifying them by computing the answers again."""
