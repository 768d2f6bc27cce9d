"""Who uses the console, and the forms that its pages send."""
