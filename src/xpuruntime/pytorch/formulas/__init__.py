"""What each training op computes, forward and backward, as functions that write IR. One file per op; none knows torch."""
