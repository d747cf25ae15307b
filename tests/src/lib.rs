//! Tenure's whole-cluster tests.
