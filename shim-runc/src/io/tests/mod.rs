//! Tests of whole streams, with real fifos, pipes and terminals.
