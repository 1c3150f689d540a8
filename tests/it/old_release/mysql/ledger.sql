CREATE TABLE `_sqlx_migrations` (
  `version` bigint(20) NOT NULL,
  `description` text NOT NULL,
  `installed_on` timestamp NOT NULL DEFAULT current_timestamp(),
  `success` tinyint(1) NOT NULL,
  `checksum` blob NOT NULL,
  `execution_time` bigint(20) NOT NULL,
  PRIMARY KEY (`version`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `_sqlx_migrations` (`version`, `description`, `installed_on`, `success`, `checksum`, `execution_time`) VALUES (1,'stock and movement','2026-11-22 15:06:00',1,0xCFCEAB6BCFAE268204BF7DCB561BEAE55C6E213A673854809D88A03EBFE6B96C116845E68D0428599F3ABA3E72E372AC,75686539);
INSERT INTO `_sqlx_migrations` (`version`, `description`, `installed_on`, `success`, `checksum`, `execution_time`) VALUES (2,'fence','2026-11-22 15:06:00',1,0x1D6655A250DC68D395A0FDEA6406C2A57FA1A1496DF74306D630CD2DD15548A6A06F9F46F6E501877384F3FF7B6B41F7,43240811);
INSERT INTO `_sqlx_migrations` (`version`, `description`, `installed_on`, `success`, `checksum`, `execution_time`) VALUES (3,'journal','2026-11-22 15:06:00',1,0xF1D2087E040DD25F9972481D0635F18380598705613129EB9A75776C5AE3DBA035F86EEF41312396695D9CEFA3F54E95,127203050);
CREATE TABLE `ledger` (
  `id` varchar(16) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
INSERT INTO `ledger` (`id`) VALUES ('1897802ccfedb5e1');
CREATE TABLE `movement` (
  `operation_id` binary(16) NOT NULL,
  `line` smallint(6) NOT NULL,
  `sku` varchar(64) NOT NULL,
  `warehouse` varchar(64) NOT NULL,
  `kind` varchar(16) NOT NULL,
  `delta` bigint(20) NOT NULL,
  `held_delta` bigint(20) NOT NULL DEFAULT 0,
  `available_after` bigint(20) NOT NULL,
  `read_version` bigint(20) DEFAULT NULL,
  `strategy` varchar(32) DEFAULT NULL,
  `durability` varchar(16) NOT NULL,
  `caller` varchar(64) NOT NULL,
  `idempotency_key` varchar(255) DEFAULT NULL,
  `request_hash` binary(32) DEFAULT NULL,
  `reason` varchar(200) DEFAULT NULL,
  `reference` varchar(200) DEFAULT NULL,
  `created_at` timestamp(6) NOT NULL DEFAULT current_timestamp(6),
  `journal_millis` bigint(20) DEFAULT NULL,
  `journal_number` bigint(20) DEFAULT NULL,
  PRIMARY KEY (`operation_id`,`line`),
  UNIQUE KEY `movement_once_per_key` (`caller`,`idempotency_key`),
  KEY `movement_of_sku` (`sku`,`operation_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
INSERT INTO `movement` (`operation_id`, `line`, `sku`, `warehouse`, `kind`, `delta`, `held_delta`, `available_after`, `read_version`, `strategy`, `durability`, `caller`, `idempotency_key`, `request_hash`, `reason`, `reference`, `created_at`, `journal_millis`, `journal_number`) VALUES (0x01A203CAEE837440A67F40B328CD49DA,0,'1001','main','received',5000,0,5000,NULL,NULL,'committed','anonymous',NULL,NULL,'seeded by the lab',NULL,'2026-11-22 15:06:00.708741',NULL,NULL);
INSERT INTO `movement` (`operation_id`, `line`, `sku`, `warehouse`, `kind`, `delta`, `held_delta`, `available_after`, `read_version`, `strategy`, `durability`, `caller`, `idempotency_key`, `request_hash`, `reason`, `reference`, `created_at`, `journal_millis`, `journal_number`) VALUES (0x01A203CAEE8570FB8B721C3D67465DED,0,'1001-redis','main','received',5000,0,5000,NULL,NULL,'committed','anonymous',NULL,NULL,'seeded by the lab',NULL,'2026-11-22 15:06:00.710228',NULL,NULL);
INSERT INTO `movement` (`operation_id`, `line`, `sku`, `warehouse`, `kind`, `delta`, `held_delta`, `available_after`, `read_version`, `strategy`, `durability`, `caller`, `idempotency_key`, `request_hash`, `reason`, `reference`, `created_at`, `journal_millis`, `journal_number`) VALUES (0x01A203CAEE91710DA8746909E6E6D0DB,0,'in-sql','main','received',10,0,10,NULL,NULL,'committed','anonymous',NULL,NULL,'first',NULL,'2026-11-22 15:06:00.722131',NULL,NULL);
INSERT INTO `movement` (`operation_id`, `line`, `sku`, `warehouse`, `kind`, `delta`, `held_delta`, `available_after`, `read_version`, `strategy`, `durability`, `caller`, `idempotency_key`, `request_hash`, `reason`, `reference`, `created_at`, `journal_millis`, `journal_number`) VALUES (0x01A203CAEE93779DA28C627B195B4C14,0,'in-sql','上海仓','received',5,0,7,NULL,NULL,'committed','anonymous',NULL,NULL,NULL,NULL,'2026-11-22 15:06:00.724308',NULL,NULL);
INSERT INTO `movement` (`operation_id`, `line`, `sku`, `warehouse`, `kind`, `delta`, `held_delta`, `available_after`, `read_version`, `strategy`, `durability`, `caller`, `idempotency_key`, `request_hash`, `reason`, `reference`, `created_at`, `journal_millis`, `journal_number`) VALUES (0x01A203CAEE9A72E8BCF60CBCDE42117F,0,'in-sql','main','deducted',-3,0,7,NULL,'single-sql','committed','anonymous','sql-1',0x886C5332CC21E0A28510DB56E81879B30EB65B9E7A0DDE716EC5A1BDFC7D570F,NULL,NULL,'2026-11-22 15:06:00.731452',NULL,NULL);
INSERT INTO `movement` (`operation_id`, `line`, `sku`, `warehouse`, `kind`, `delta`, `held_delta`, `available_after`, `read_version`, `strategy`, `durability`, `caller`, `idempotency_key`, `request_hash`, `reason`, `reference`, `created_at`, `journal_millis`, `journal_number`) VALUES (0x01A203CAEE9D724093DD8C78E12566A1,0,'in-sql','main','deducted',-1,0,6,2,'optimistic','committed','anonymous',NULL,NULL,NULL,NULL,'2026-11-22 15:06:00.734148',NULL,NULL);
INSERT INTO `movement` (`operation_id`, `line`, `sku`, `warehouse`, `kind`, `delta`, `held_delta`, `available_after`, `read_version`, `strategy`, `durability`, `caller`, `idempotency_key`, `request_hash`, `reason`, `reference`, `created_at`, `journal_millis`, `journal_number`) VALUES (0x01A203CAEE9F74729A16F1023E317FD3,0,'in-sql','main','received',4,0,10,NULL,NULL,'committed','anonymous','adj-1',0x4C54397D46A43C98A83D0C21155A6B36DF42A598A6251FE314A7DBACCC92BB39,'delivery','PO-4711','2026-11-22 15:06:00.736453',NULL,NULL);
INSERT INTO `movement` (`operation_id`, `line`, `sku`, `warehouse`, `kind`, `delta`, `held_delta`, `available_after`, `read_version`, `strategy`, `durability`, `caller`, `idempotency_key`, `request_hash`, `reason`, `reference`, `created_at`, `journal_millis`, `journal_number`) VALUES (0x01A203CAEEA1752DB6D5372DBC2DD08A,0,'in-redis','main','received',10,0,10,NULL,NULL,'committed','anonymous',NULL,NULL,NULL,NULL,'2026-11-22 15:06:00.738498',NULL,NULL);
INSERT INTO `movement` (`operation_id`, `line`, `sku`, `warehouse`, `kind`, `delta`, `held_delta`, `available_after`, `read_version`, `strategy`, `durability`, `caller`, `idempotency_key`, `request_hash`, `reason`, `reference`, `created_at`, `journal_millis`, `journal_number`) VALUES (0x01A203CAEEA4751BAE06771D11DA9A10,0,'in-redis','main','deducted',-2,0,8,NULL,'redis-lua','redis','anonymous','redis-1',0x4A2B9EC3023B85C1FC6EA0634B949DC23A27877F633D92F5597A47E3FAFA8C1E,NULL,NULL,'2026-11-22 15:06:00.741000',1795359960741,0);
INSERT INTO `movement` (`operation_id`, `line`, `sku`, `warehouse`, `kind`, `delta`, `held_delta`, `available_after`, `read_version`, `strategy`, `durability`, `caller`, `idempotency_key`, `request_hash`, `reason`, `reference`, `created_at`, `journal_millis`, `journal_number`) VALUES (0x01A203CAEEA67139878A7D1C32997EF4,0,'in-redis','main','adjusted',-1,0,7,NULL,NULL,'redis','anonymous',NULL,NULL,'broken','R-0','2026-11-22 15:06:00.742000',1795359960742,0);
CREATE TABLE `stock` (
  `sku` varchar(64) NOT NULL,
  `warehouse` varchar(64) NOT NULL,
  `on_hand` bigint(20) NOT NULL,
  `held` bigint(20) NOT NULL DEFAULT 0,
  `backorder_limit` bigint(20) NOT NULL DEFAULT 0,
  `version` bigint(20) NOT NULL DEFAULT 1,
  `home` varchar(5) NOT NULL,
  `fence` bigint(20) NOT NULL DEFAULT 0,
  `fence_source` varchar(64) NOT NULL DEFAULT '',
  `journal_millis` bigint(20) NOT NULL DEFAULT 0,
  `journal_number` bigint(20) NOT NULL DEFAULT 0,
  PRIMARY KEY (`sku`,`warehouse`),
  CONSTRAINT `stock_not_oversold` CHECK (`on_hand` - `held` >= -`backorder_limit`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
INSERT INTO `stock` (`sku`, `warehouse`, `on_hand`, `held`, `backorder_limit`, `version`, `home`, `fence`, `fence_source`, `journal_millis`, `journal_number`) VALUES ('1001','main',5000,0,0,1,'sql',0,'',0,0);
INSERT INTO `stock` (`sku`, `warehouse`, `on_hand`, `held`, `backorder_limit`, `version`, `home`, `fence`, `fence_source`, `journal_millis`, `journal_number`) VALUES ('1001-redis','main',5000,0,0,1,'redis',0,'',0,0);
INSERT INTO `stock` (`sku`, `warehouse`, `on_hand`, `held`, `backorder_limit`, `version`, `home`, `fence`, `fence_source`, `journal_millis`, `journal_number`) VALUES ('in-redis','main',7,0,0,1795359960739523,'redis',0,'',1795359960742,0);
INSERT INTO `stock` (`sku`, `warehouse`, `on_hand`, `held`, `backorder_limit`, `version`, `home`, `fence`, `fence_source`, `journal_millis`, `journal_number`) VALUES ('in-sql','main',10,0,0,4,'sql',0,'',0,0);
INSERT INTO `stock` (`sku`, `warehouse`, `on_hand`, `held`, `backorder_limit`, `version`, `home`, `fence`, `fence_source`, `journal_millis`, `journal_number`) VALUES ('in-sql','上海仓',5,0,2,1,'sql',0,'',0,0);
