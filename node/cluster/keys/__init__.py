"""The cluster's keys: certificates, who was let in, who was taken out, tokens."""
