"""The HTTP front: routing, guarding and relaying bytes."""
