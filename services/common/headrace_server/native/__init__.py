"""Server of the native protocol: the messages of a service's RPCs in frames on a socket."""
