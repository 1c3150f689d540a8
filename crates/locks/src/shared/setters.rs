//! The methods of builders that only set a field.

/// Writes methods with the names of fields, which set the field and return the builder.
macro_rules! setters {
    ($($(#[$attribute:meta])* $field:ident: $type:ty;)*) => {
        $(
            $(#[$attribute])*
            pub fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )*
    };
}

pub(crate) use setters;
