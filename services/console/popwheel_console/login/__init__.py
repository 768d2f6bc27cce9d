"""Login of the console's users, and the forms that its pages send."""
