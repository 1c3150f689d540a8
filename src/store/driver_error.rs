//! The one table from driver errors to what is to be done about them.
