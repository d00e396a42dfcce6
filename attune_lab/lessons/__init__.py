"""What is known of tuning: the catalog of lessons, and the evidence that finished campaigns add to it."""
