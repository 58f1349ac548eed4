"""`redelivery ui`: the page on which an operator looks at dead letters and sends them back."""
