CREATE INDEX movement_of_reference ON movement (caller, reference) WHERE reference IS NOT NULL;
