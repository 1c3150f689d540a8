BEGIN TRANSACTION;
CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO "_sqlx_migrations" VALUES(1,'stock and movement','2026-11-22 13:29:33',1,X'84DD37C49374E93F93D7C6A913FF977C452A779B8F874B55A9234960B423F1F9712556E6E55E36CA35DBDC688FC72896',2900434);
INSERT INTO "_sqlx_migrations" VALUES(2,'fence','2026-11-22 13:29:33',1,X'D8B7A43F07474FB1BCEE197D991DEC0BB75B333FD9EE5455BFF5E0582344BA0F4703972E253A976D0CBE11726B157AF8',9537980);
INSERT INTO "_sqlx_migrations" VALUES(3,'journal','2026-11-22 13:29:33',1,X'00C2FDDA954661AD28998C705A944F6D28C02AB5E4CA71634CAA83B803D8C4E52CE0A423545C785BECF816A0527EFF55',4208577);
CREATE TABLE ledger (id text NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;
INSERT INTO "ledger" VALUES('d960d86374033840');
CREATE TABLE movement (
    operation_id    blob    NOT NULL,
    line            integer NOT NULL,
    sku             text    NOT NULL,
    warehouse       text    NOT NULL,
    kind            text    NOT NULL,
    delta           integer NOT NULL,
    held_delta      integer NOT NULL DEFAULT 0,
    available_after integer NOT NULL,
    read_version    integer,
    strategy        text,
    durability      text    NOT NULL,
    caller          text    NOT NULL,
    idempotency_key text,
    request_hash    blob,
    reason          text,
    reference       text,
    created_at      text    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), journal_millis integer, journal_number integer,
    PRIMARY KEY (operation_id, line),
    CONSTRAINT movement_once_per_key UNIQUE (caller, idempotency_key)
) STRICT, WITHOUT ROWID;
INSERT INTO "movement" VALUES(X'01A203729F55739F99CE4A4E847B377D',0,'1001','main','received',5000,0,5000,NULL,NULL,'committed','anonymous',NULL,NULL,'seeded by the lab',NULL,'2026-11-22T13:29:33.284Z',NULL,NULL);
INSERT INTO "movement" VALUES(X'01A203729F6D704FB2719F866619750B',0,'1001-redis','main','received',5000,0,5000,NULL,NULL,'committed','anonymous',NULL,NULL,'seeded by the lab',NULL,'2026-11-22T13:29:33.298Z',NULL,NULL);
INSERT INTO "movement" VALUES(X'01A203729FB27078A510EA90F4E9076C',0,'in-sql','main','received',10,0,10,NULL,NULL,'committed','anonymous',NULL,NULL,'first count',NULL,'2026-11-22T13:29:33.363Z',NULL,NULL);
INSERT INTO "movement" VALUES(X'01A203729FC2775B88B3324055FC5F6C',0,'in-sql','上海仓','received',5,0,7,NULL,NULL,'committed','anonymous',NULL,NULL,NULL,NULL,'2026-11-22T13:29:33.382Z',NULL,NULL);
INSERT INTO "movement" VALUES(X'01A203729FE671DCA17723C6D8FAF990',0,'in-redis','main','received',10,0,10,NULL,NULL,'committed','anonymous',NULL,NULL,NULL,NULL,'2026-11-22T13:29:33.419Z',NULL,NULL);
INSERT INTO "movement" VALUES(X'01A203729FF970AABA7CC41AE1C502B7',0,'in-sql','main','deducted',-3,0,7,NULL,'single-sql','committed','anonymous','sql-1',X'886C5332CC21E0A28510DB56E81879B30EB65B9E7A0DDE716EC5A1BDFC7D570F',NULL,NULL,'2026-11-22T13:29:33.434Z',NULL,NULL);
INSERT INTO "movement" VALUES(X'01A20372A003753989CE07299AFEEDFA',0,'in-sql','main','deducted',-1,0,6,2,'optimistic','committed','anonymous',NULL,NULL,NULL,NULL,'2026-11-22T13:29:33.449Z',NULL,NULL);
INSERT INTO "movement" VALUES(X'01A20372A013761ABEFF075FDB78C33F',0,'in-sql','main','received',4,0,10,NULL,NULL,'committed','anonymous','adjust-1',X'4C54397D46A43C98A83D0C21155A6B36DF42A598A6251FE314A7DBACCC92BB39','delivery','PO-4711','2026-11-22T13:29:33.461Z',NULL,NULL);
INSERT INTO "movement" VALUES(X'01A20372A020705B9D69ABF2071367CB',0,'in-redis','main','deducted',-2,0,8,NULL,'redis-lua','redis','anonymous','redis-1',X'4A2B9EC3023B85C1FC6EA0634B949DC23A27877F633D92F5597A47E3FAFA8C1E',NULL,NULL,'2026-11-22T13:29:33.474Z',1795354173474,0);
INSERT INTO "movement" VALUES(X'01A20372A02774CFBE225130C1749D0B',0,'in-redis','main','deducted',-1,0,7,NULL,'redis-watch','redis','anonymous',NULL,NULL,NULL,NULL,'2026-11-22T13:29:33.484Z',1795354173484,0);
CREATE TABLE stock (
    sku             text    NOT NULL,
    warehouse       text    NOT NULL,
    on_hand         integer NOT NULL,
    held            integer NOT NULL DEFAULT 0,
    backorder_limit integer NOT NULL DEFAULT 0,
    version         integer NOT NULL DEFAULT 1,
    home            text    NOT NULL, fence integer NOT NULL DEFAULT 0, fence_source text NOT NULL DEFAULT '', journal_millis integer NOT NULL DEFAULT 0, journal_number integer NOT NULL DEFAULT 0,
    PRIMARY KEY (sku, warehouse),
    CONSTRAINT stock_not_oversold CHECK (on_hand - held >= -backorder_limit)
) STRICT, WITHOUT ROWID;
INSERT INTO "stock" VALUES('1001','main',5000,0,0,1,'sql',0,'',0,0);
INSERT INTO "stock" VALUES('1001-redis','main',5000,0,0,1,'redis',0,'',0,0);
INSERT INTO "stock" VALUES('in-redis','main',7,0,0,1795354173428180,'redis',0,'',1795354173484,0);
INSERT INTO "stock" VALUES('in-sql','main',10,0,0,4,'sql',0,'',0,0);
INSERT INTO "stock" VALUES('in-sql','上海仓',5,0,2,1,'sql',0,'',0,0);
CREATE INDEX movement_of_sku ON movement (sku, operation_id);
COMMIT;
