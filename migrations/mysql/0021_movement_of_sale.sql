-- LOCK=NONE: sales continue while the index is built.
ALTER TABLE movement
    ADD INDEX /*M! IF NOT EXISTS */ movement_of_sale (reverses), LOCK = NONE;
