"""What only this plugin needs: the folder, and a sender that keeps in it what another could not send."""
