"""What people see: results turned into text and HTML, the HTTP routes and the tab."""
