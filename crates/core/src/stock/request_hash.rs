//! The hashes of requests.

use sha2::{Digest, Sha256};

use super::{
    Change, CountedFrom, Late, Line, OperationId, Quantity, Remarks, RequestHash, Sku, Warehouse,
};

impl RequestHash {
    /// The hash of a deduction of one line. Without a reference it is the hash of the first release,
    /// so that retries of its requests are recognised.
    #[must_use]
    pub fn of_deduction(
        sku: &Sku,
        warehouse: &Warehouse,
        quantity: Quantity,
        reference: Option<&str>,
    ) -> Self {
        let reference = reference.map(|reference| format!("{reference}\n"));
        let reference = reference.unwrap_or_default();
        Self::of_lines(&format!(
            "deduct\n{sku}\t{warehouse}\t{quantity}\n{reference}"
        ))
    }

    /// The hash of a reversal of these lines of a sale, in their order. Of no lines: of so many units; `None`: all
    /// that are left.
    #[must_use]
    pub fn of_reversal(
        sale: OperationId,
        (quantity, lines): (Option<Quantity>, &[(i64, Option<Quantity>)]),
        restock: bool,
        reason: &str,
    ) -> Self {
        let text = if lines.is_empty() {
            let quantity = units(quantity);
            format!("reverse\n{sale}\t{quantity}\t{restock}\n{reason}\n")
        } else {
            let lines = numbered(lines);
            format!("reverse together\n{sale}\t{restock}\n{lines}{reason}\n")
        };
        Self::of_lines(&text)
    }

    /// The hash of deductions, or of adjustments, which are made together. A single one has the hash of the
    /// request of its own.
    #[must_use]
    pub fn of_operation(lines: &[Line], remarks: &Remarks) -> Self {
        let [reason, reference] = remarks.texts();
        let reason = reason.unwrap_or_default();
        if let [one] = lines
            && one.others.is_empty()
        {
            let Line { sku, warehouse, .. } = one;
            match one.change {
                Change::Deduct(quantity) => {
                    return Self::of_deduction(sku, warehouse, quantity, reference);
                }
                Change::Adjust(delta) => {
                    let reference = reference.unwrap_or_default();
                    return Self::of_lines(&format!(
                        "adjust\n{sku}\t{warehouse}\t{delta}\n{reason}\n{reference}\n"
                    ));
                }
                Change::Count(count) => {
                    let from = match count.from {
                        CountedFrom::Units(units) => format!("Units({units})"),
                        CountedFrom::Any => "Any".to_owned(),
                        CountedFrom::Absent => "Absent".to_owned(),
                    };
                    return Self::of_lines(&format!(
                        "count\n{sku}\t{warehouse}\t{}\t{from}\n{reason}\n",
                        count.on_hand
                    ));
                }
                Change::Return(_) | Change::Set(_) | Change::Hold(_) | Change::End(_) => {}
            }
        }
        let line = |line: &Line| {
            let Line { sku, warehouse, .. } = line;
            let delta = match &line.change {
                Change::Deduct(quantity) => -quantity.units(),
                Change::Adjust(delta) => *delta,
                Change::Hold(holding) => holding.quantity.units(),
                Change::Return(_) | Change::Set(_) | Change::Count(_) | Change::End(_) => 0,
            };
            let others = line.others.iter().map(|other| format!(",{other}"));
            let others: String = others.collect();
            let split = if line.split { "\tsplit" } else { "" };
            format!("{sku}\t{warehouse}{others}\t{delta}{split}\n")
        };
        let kind = match lines.first().map(|line| &line.change) {
            Some(Change::Deduct(_)) => "deduct together".to_owned(),
            Some(Change::Hold(holding)) => format!("hold\t{:?}", holding.lasts),
            _ => "adjust together".to_owned(),
        };
        let lines: String = lines.iter().map(line).collect();
        let reference = reference.unwrap_or_default();
        Self::of_lines(&format!("{kind}\n{lines}{reason}\n{reference}\n"))
    }

    /// The hash of a request for a hold, which has this hash without the hold that it replaces.
    #[must_use]
    pub fn replacing(self, hold: OperationId) -> Self {
        Self::of_lines(&format!("replaces\n{hold}\n{:02x?}\n", self.0))
    }

    /// The hash of a request to end lines of a hold.
    #[must_use]
    pub fn of_hold_end(
        hold: OperationId,
        confirm: Option<Late>,
        lines: &[(i64, Option<Quantity>)],
    ) -> Self {
        let lines = numbered(lines);
        let end = match confirm {
            Some(Late::Allowed) => "confirm",
            Some(Late::Refused) => "confirm in time",
            None => "release",
        };
        Self::of_lines(&format!("{end}\n{hold}\n{lines}"))
    }

    fn of_lines(canonical: &str) -> Self {
        Self(Sha256::digest(canonical).into())
    }
}

/// Lines by their numbers, with the units of each.
fn numbered(lines: &[(i64, Option<Quantity>)]) -> String {
    let line =
        |(line, quantity): &(i64, Option<Quantity>)| format!("{line}\t{}\n", units(*quantity));
    lines.iter().map(line).collect()
}

fn units(quantity: Option<Quantity>) -> String {
    quantity.map_or_else(|| "all".to_owned(), |units| units.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::{Count, Remark};
    use super::*;

    /// The first release computed this hash, and its ledgers have it.
    #[test]
    fn hash_without_a_reference_never_changes() {
        let (sku, warehouse) = (Sku::parse("a").unwrap(), Warehouse::default());
        let hash = |reference| {
            let RequestHash(bytes) =
                RequestHash::of_deduction(&sku, &warehouse, Quantity::ONE, reference);
            format!("{bytes:02x?}").replace(", ", "")
        };
        assert_eq!(
            hash(None),
            "[c9311394522a82a466b2ad4f72f6303bbc33bd9f21dfec5d50d48f93d781cf6f]"
        );
        assert_ne!(hash(Some("R-1")), hash(None));
        assert_ne!(hash(Some("R-1")), hash(Some("R-2")));
    }

    /// Ledgers have these hashes.
    #[test]
    fn hash_of_lines_never_changes() {
        let line = |sku, warehouse, change| {
            let (sku, warehouse) = (Sku::parse(sku), Warehouse::parse(warehouse));
            Line::new(sku.unwrap(), warehouse.unwrap(), change)
        };
        let one = || Change::Deduct(Quantity::ONE);
        let order = [line("a", "main", one()), line("b", "main", one())];
        let transfer = [
            line("a", "main", Change::Adjust(-5)),
            line("a", "north", Change::Adjust(5)),
        ];
        let counted = |from| {
            let on_hand = 7;
            [line("a", "main", Change::Count(Count { on_hand, from }))]
        };
        let [reason, reference] =
            ["transfer", "R-1"].map(|text| Some(Remark::recorded(text.to_owned())));
        let remarks = Remarks { reason, reference };
        for (lines, remarks, expected) in [
            (
                &counted(CountedFrom::Units(5))[..],
                &remarks,
                "c1e37982bd8c3b314ed74b8f731c14b1317a4a8ade9cb7acd441452a518373af",
            ),
            (
                &counted(CountedFrom::Any),
                &remarks,
                "3c3cbb21353f754c8b0c738fd12dcb75fa5c422ce95bfda50ad2e75e357bec28",
            ),
            (
                &counted(CountedFrom::Absent),
                &remarks,
                "7a89daa8987686aad3555b4fe6122d4053cd353be11be38dcc4bf7e47592e722",
            ),
            (
                &order,
                &Remarks::default(),
                "89c7c2ba38be2e1d35d423b9a7d9bef3094aff9f8996b9a238a77c73338d1510",
            ),
            (
                &transfer,
                &remarks,
                "53351b2ff868a88e30c70038b6697bbf0b637b99cd37c7704a73b05bd7178a04",
            ),
        ] {
            let RequestHash(bytes) = RequestHash::of_operation(lines, remarks);
            assert_eq!(
                format!("{bytes:02x?}").replace(", ", ""),
                format!("[{expected}]")
            );
        }
        let single = RequestHash::of_operation(&order[..1], &Remarks::default());
        let (sku, warehouse) = (&order[0].sku, &order[0].warehouse);
        assert_eq!(
            single,
            RequestHash::of_deduction(sku, warehouse, Quantity::ONE, None)
        );
    }
}
