CREATE INDEX movement_of_sale ON movement (reverses) WHERE reverses IS NOT NULL;
