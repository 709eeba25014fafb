"""Review of changes: findings about policies, differences of plans, programs, receipts and locks, and rules that they must satisfy."""
