"""The version of Glossa, server and client alike: both distributions read it here."""

VERSION = "0.2.0"
