//! Taking sold units back.

use tokio::time::Instant;

use super::{
    Caller, Change, Idempotency, Line, Movement, MovementKind, Operation, OperationId, Quantity,
    Remark, Remarks, Return, StockError,
};

/// Takes units of a sale back.
#[derive(Debug, Clone)]
pub struct Reversal {
    /// The operation id of the movement that records the return.
    pub operation: OperationId,
    /// Who sent the request.
    pub caller: Caller,
    /// The operation id of the sale.
    pub sale: OperationId,
    /// How many units come back; `None`: all that are left.
    pub quantity: Option<Quantity>,
    /// The same for each of these lines of the sale, each named once. Empty: for all lines.
    pub lines: Vec<(i64, Option<Quantity>)>,
    /// Whether they are on hand again.
    pub restock: bool,
    /// The reason.
    pub reason: Remark,
    /// The caller's key, if one was sent.
    pub idempotency: Option<Idempotency>,
    /// When the caller is answered at the latest. No return is made later.
    pub deadline: Instant,
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
        let remarks = Remarks {
            reason: Some(self.reason),
            ..Remarks::default()
        };
        Ok(Operation {
            id: self.operation,
            ..Operation::of_lines(self.caller, lines, self.idempotency, remarks, self.deadline)?
        })
    }
}
