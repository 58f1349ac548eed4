"""The folder, and a sender that stores in it the messages that another sender could not send."""
