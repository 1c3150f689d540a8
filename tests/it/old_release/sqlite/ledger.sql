PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO _sqlx_migrations VALUES(1,'initial','2026-11-26 16:25:42',1,X'1594970e1f3d6b026bb9701523cbc59f7025c25fec6f07314498634bea9e96aef6663af245cdad0514abb3865ceb8f9c',6314095);
COMMIT;
INSERT INTO stock VALUES('a','main',13,0,2,7,1795710342624000,'sqlite:fbf7ebfdd2ac401982c263acc996cbfa');
INSERT INTO stock VALUES('a','上海仓',4,0,0,2,0,'');
INSERT INTO movement VALUES(X'01a218ad55c877aa81259051296da21d',0,'a','main','received',20,0,22,1,NULL,NULL,'anonymous',NULL,NULL,'count',NULL,NULL,NULL,'2026-11-26T16:25:42.602Z');
INSERT INTO movement VALUES(X'01a218ad55d475d7a3e301704c7a67a8',0,'a','上海仓','received',5,0,5,1,NULL,NULL,'anonymous',NULL,NULL,NULL,NULL,NULL,NULL,'2026-11-26T16:25:42.612Z');
INSERT INTO movement VALUES(X'01a218ad55d573e690b2cde9700ef373',0,'a','main','deducted',-3,0,19,2,NULL,'single-sql','anonymous','key-0',X'7140b84367bcc3de7f86958dea4c2c8db917d2a44721c0aa10afa42eb8a7fa6d',NULL,'R-1',NULL,NULL,'2026-11-26T16:25:42.614Z');
INSERT INTO movement VALUES(X'01a218ad55da73f0b5c4ab53605e387a',0,'a','main','deducted',-1,0,18,3,NULL,'group-commit','anonymous','key-1',X'c9311394522a82a466b2ad4f72f6303bbc33bd9f21dfec5d50d48f93d781cf6f',NULL,NULL,NULL,NULL,'2026-11-26T16:25:42.619Z');
INSERT INTO movement VALUES(X'01a218ad55de733ca102c9d99ef5a959',0,'a','上海仓','deducted',-1,0,4,2,1,'optimistic','anonymous','key-2',X'abc4c7f874b2a30b7a17742c6489c5aba749fc93278afd9616543103e908dd65',NULL,NULL,NULL,NULL,'2026-11-26T16:25:42.622Z');
INSERT INTO movement VALUES(X'01a218ad55df7464953816e80ffaf953',0,'a','main','deducted',-2,0,16,4,3,'sql-lock','anonymous','key-3',X'025984583f388ab64769c54714b4bf9558b55a29655cca81b910cabcbd07c2dc',NULL,NULL,NULL,NULL,'2026-11-26T16:25:42.625Z');
INSERT INTO movement VALUES(X'01a218ad55e2714c96fec85b8d604b21',0,'a','main','deducted',-1,0,15,5,4,'no-lock','anonymous','key-4',X'c9311394522a82a466b2ad4f72f6303bbc33bd9f21dfec5d50d48f93d781cf6f',NULL,NULL,NULL,NULL,'2026-11-26T16:25:42.626Z');
INSERT INTO movement VALUES(X'01a218ad55e57574a7b0ced128d0c157',0,'a','main','adjusted',-1,0,14,6,NULL,NULL,'anonymous','key-5',X'a0430b0d8f0e88f919a61071dd1c5cd9081f2ffac4c2726ad43fcc5b46ce6d0e','broken','R-2',NULL,NULL,'2026-11-26T16:25:42.630Z');
INSERT INTO movement VALUES(X'01a218ad55ea7216a7fd9789106600e1',0,'a','main','returned',1,0,15,7,NULL,NULL,'anonymous','key-6',X'b62d2118f546c93ad4b72139b2c9a6b99e4f14ee276c4de46f1a1de67f8a96ff','wrong size',NULL,X'01a218ad55d573e690b2cde9700ef373',1,'2026-11-26T16:25:42.635Z');
INSERT INTO ledger VALUES('6e6595b303ba07d5');
INSERT INTO distributed_lock_source VALUES(1,'fbf7ebfdd2ac401982c263acc996cbfa',1795710342624000);
