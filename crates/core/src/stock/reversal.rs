//! Taking sold units back.

use super::{
    Change, Line, Movement, MovementKind, Operation, OperationId, Quantity, Return, StockError,
};

/// Takes units of a sale back.
#[derive(Debug, Clone)]
pub struct Reversal {
    /// The operation that takes them back, without its lines.
    pub new: Operation,
    /// The operation id of the sale.
    pub sale: OperationId,
    /// How many units come back; `None`: all that are left.
    pub quantity: Option<Quantity>,
    /// The same for each of these lines of the sale, each named once. Empty: for all lines.
    pub lines: Vec<(i64, Option<Quantity>)>,
    /// Whether they are on hand again.
    pub restock: bool,
}

impl Reversal {
    /// The operation that takes units of a sale back, which has these movements, in the order of their lines.
    ///
    /// # Errors
    /// [`StockError::NotASale`]; [`StockError::UnknownLine`]; [`StockError::LinesRequired`] if it is not clear
    /// of which line the units are; [`StockError::KeyRequired`].
    pub fn of_sale(self, sold: Vec<Movement>) -> Result<Operation, StockError> {
        if sold.iter().any(|one| one.kind != MovementKind::Deducted) {
            return Err(StockError::NotASale);
        }
        let mut units = self.lines;
        units.sort_unstable_by_key(|(line, _)| *line);
        if units.is_empty() {
            if sold.len() > 1 && self.quantity.is_some() {
                return Err(StockError::LinesRequired);
            }
            units = sold.iter().map(|one| (one.line, self.quantity)).collect();
        }
        let mut sold = sold.into_iter();
        let mut lines = Vec::with_capacity(units.len());
        for (line, quantity) in units {
            // Both are in the order of the lines.
            let sale = sold.find(|one| one.line == line);
            let sale = sale.ok_or(StockError::UnknownLine { line })?;
            let change = Change::Return(Return {
                sale: self.sale,
                line,
                sold: -sale.delta,
                quantity,
                restock: self.restock,
            });
            lines.push(Line::new(sale.sku, sale.warehouse, change));
        }
        self.new.with_lines(lines)
    }
}
