"""What tests play with: scripted servers, clients and policies, and files to try."""
