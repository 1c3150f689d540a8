CREATE TABLE `_sqlx_migrations` (
  `version` bigint(20) NOT NULL,
  `description` text NOT NULL,
  `installed_on` timestamp NOT NULL DEFAULT current_timestamp(),
  `success` tinyint(1) NOT NULL,
  `checksum` blob NOT NULL,
  `execution_time` bigint(20) NOT NULL,
  PRIMARY KEY (`version`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `_sqlx_migrations` (`version`, `description`, `installed_on`, `success`, `checksum`, `execution_time`) VALUES (1,'initial','2026-11-26 16:25:48',1,0xD45A0C019B97DF7731EFD240DC2619C1CD0E5438D098E873CC6A6A862FB964ECFF26EB6180DF3CA8B418C87A512A5950,273295278);
INSERT INTO `stock` (`sku`, `warehouse`, `on_hand`, `held`, `backorder_limit`, `version`, `fence`, `fence_source`) VALUES ('a','main',13,0,2,7,1795710348443972,'mysql:3fbd335648374b13a1bfbab0dcbaca6f'),
('a','上海仓',4,0,0,2,0,'');
INSERT INTO `movement` (`operation_id`, `line`, `sku`, `warehouse`, `kind`, `delta`, `held_delta`, `available_after`, `level_version`, `read_version`, `strategy`, `caller`, `idempotency_key`, `request_hash`, `reason`, `reference`, `reverses`, `returned`, `created_at`) VALUES (0x01A218AD6C68734D8CA44C76F14C770A,0,'a','main','received',20,0,22,1,NULL,NULL,'anonymous',NULL,NULL,'count',NULL,NULL,NULL,'2026-11-26 16:25:48.395037'),
(0x01A218AD6C6D764DB5A676028D8662F5,0,'a','上海仓','received',5,0,5,1,NULL,NULL,'anonymous',NULL,NULL,NULL,NULL,NULL,NULL,'2026-11-26 16:25:48.398177'),
(0x01A218AD6C7877DAB991DB573C4252E6,0,'a','main','deducted',-3,0,19,2,NULL,'single-sql','anonymous','key-0',0x7140B84367BCC3DE7F86958DEA4C2C8DB917D2A44721C0AA10AFA42EB8A7FA6D,NULL,'R-1',NULL,NULL,'2026-11-26 16:25:48.409131'),
(0x01A218AD6C7A70F7B14FFDB2345A93BF,0,'a','main','deducted',-1,0,18,3,NULL,'group-commit','anonymous','key-1',0xC9311394522A82A466B2AD4F72F6303BBC33BD9F21DFEC5D50D48F93D781CF6F,NULL,NULL,NULL,NULL,'2026-11-26 16:25:48.410911'),
(0x01A218AD6C7B71F28C8E43C87A8EEB06,0,'a','上海仓','deducted',-1,0,4,2,1,'optimistic','anonymous','key-2',0xABC4C7F874B2A30B7A17742C6489C5ABA749FC93278AFD9616543103E908DD65,NULL,NULL,NULL,NULL,'2026-11-26 16:25:48.417340'),
(0x01A218AD6C82721EA617BF1E1A53D729,0,'a','main','deducted',-2,0,16,4,3,'sql-lock','anonymous','key-3',0x025984583F388AB64769C54714B4BF9558B55A29655CCA81B910CABCBD07C2DC,NULL,NULL,NULL,NULL,'2026-11-26 16:25:48.445446'),
(0x01A218AD6CA4745F8F1AA412B46C7536,0,'a','main','deducted',-1,0,15,5,4,'no-lock','anonymous','key-4',0xC9311394522A82A466B2AD4F72F6303BBC33BD9F21DFEC5D50D48F93D781CF6F,NULL,NULL,NULL,NULL,'2026-11-26 16:25:48.452891'),
(0x01A218AD6CA573DA9619E1A656145358,0,'a','main','adjusted',-1,0,14,6,NULL,NULL,'anonymous','key-5',0xA0430B0D8F0E88F919A61071DD1C5CD9081F2FFAC4C2726AD43FCC5B46CE6D0E,'broken','R-2',NULL,NULL,'2026-11-26 16:25:48.454342'),
(0x01A218AD6CA775D8BDC38804B3E020CE,0,'a','main','returned',1,0,15,7,NULL,NULL,'anonymous','key-6',0x89D35308A99EE362118A89F76DDB733761E7B5F9713FC067FC969D082080DFBA,'wrong size',NULL,0x01A218AD6C7877DAB991DB573C4252E6,1,'2026-11-26 16:25:48.456700');
INSERT INTO `ledger` (`id`) VALUES ('d2eaa91f812c8c3d');
INSERT INTO `distributed_lock_source` (`number`, `id`) VALUES (1,'3fbd335648374b13a1bfbab0dcbaca6f');
