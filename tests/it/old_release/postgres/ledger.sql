SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public._sqlx_migrations (
    version bigint NOT NULL,
    description text NOT NULL,
    installed_on timestamp with time zone DEFAULT now() NOT NULL,
    success boolean NOT NULL,
    checksum bytea NOT NULL,
    execution_time bigint NOT NULL
);
CREATE TABLE public.ledger (
    id character varying(16) NOT NULL
);
CREATE TABLE public.movement (
    operation_id uuid NOT NULL,
    line smallint NOT NULL,
    sku character varying(64) NOT NULL COLLATE pg_catalog."C",
    warehouse character varying(64) NOT NULL COLLATE pg_catalog."C",
    kind character varying(16) NOT NULL COLLATE pg_catalog."C",
    delta bigint NOT NULL,
    held_delta bigint DEFAULT 0 NOT NULL,
    available_after bigint NOT NULL,
    read_version bigint,
    strategy character varying(32) COLLATE pg_catalog."C",
    durability character varying(16) NOT NULL COLLATE pg_catalog."C",
    caller character varying(64) NOT NULL COLLATE pg_catalog."C",
    idempotency_key character varying(255) COLLATE pg_catalog."C",
    request_hash bytea,
    reason character varying(200),
    reference character varying(200) COLLATE pg_catalog."C",
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    journal_millis bigint,
    journal_number bigint
);
CREATE TABLE public.stock (
    sku character varying(64) NOT NULL COLLATE pg_catalog."C",
    warehouse character varying(64) NOT NULL COLLATE pg_catalog."C",
    on_hand bigint NOT NULL,
    held bigint DEFAULT 0 NOT NULL,
    backorder_limit bigint DEFAULT 0 NOT NULL,
    version bigint DEFAULT 1 NOT NULL,
    home character varying(5) NOT NULL COLLATE pg_catalog."C",
    fence bigint DEFAULT 0 NOT NULL,
    fence_source character varying(64) DEFAULT ''::character varying NOT NULL COLLATE pg_catalog."C",
    journal_millis bigint DEFAULT 0 NOT NULL,
    journal_number bigint DEFAULT 0 NOT NULL,
    CONSTRAINT stock_not_oversold CHECK (((on_hand - held) >= (- backorder_limit)))
)
WITH (fillfactor='50');
INSERT INTO public._sqlx_migrations VALUES (1, 'stock and movement', '2026-11-22 15:06:06.597759+00', true, '\xab0b41cb5558dc8df4238540f03efc65cc2c62a384d8fd5e8a5afad4a0f0497ff824b486a5fd64f348db4ccb361c2a88', 25908489);
INSERT INTO public._sqlx_migrations VALUES (2, 'fence', '2026-11-22 15:06:06.624424+00', true, '\x993842ede070acd137bbd52f5807fcf228447c8197fd1704af86cccec58468873be3afc2064202071d70b0f9a3ecc981', 5483327);
INSERT INTO public._sqlx_migrations VALUES (3, 'journal', '2026-11-22 15:06:06.630674+00', true, '\x78ff26982844e3a257fb284efd41c227378af7677d2dc0beb59ab49069a8037a100373cdb5deb696409cec09e4ed4620', 11213319);
INSERT INTO public.ledger VALUES ('53468ed873b74fa9');
INSERT INTO public.movement VALUES ('01a203cb-05bf-74ae-9f5e-5f600b1f9154', 0, '1001', 'main', 'received', 5000, 0, 5000, NULL, NULL, 'committed', 'anonymous', NULL, NULL, 'seeded by the lab', NULL, '2026-11-22 15:06:06.664136+00', NULL, NULL);
INSERT INTO public.movement VALUES ('01a203cb-05c9-7077-8833-a9cd83042d7c', 0, '1001-redis', 'main', 'received', 5000, 0, 5000, NULL, NULL, 'committed', 'anonymous', NULL, NULL, 'seeded by the lab', NULL, '2026-11-22 15:06:06.666293+00', NULL, NULL);
INSERT INTO public.movement VALUES ('01a203cb-05e7-7257-90dc-9b4baeae0cdd', 0, 'in-sql', 'main', 'received', 10, 0, 10, NULL, NULL, 'committed', 'anonymous', NULL, NULL, 'first', NULL, '2026-11-22 15:06:06.697074+00', NULL, NULL);
INSERT INTO public.movement VALUES ('01a203cb-05ea-703c-a64d-d32b0aa4b11f', 0, 'in-sql', '上海仓', 'received', 5, 0, 7, NULL, NULL, 'committed', 'anonymous', NULL, NULL, NULL, NULL, '2026-11-22 15:06:06.699682+00', NULL, NULL);
INSERT INTO public.movement VALUES ('01a203cb-05f3-75bd-b450-6817e2c17e22', 0, 'in-sql', 'main', 'deducted', -3, 0, 7, NULL, 'single-sql', 'committed', 'anonymous', 'sql-1', '\x886c5332cc21e0a28510db56e81879b30eb65b9e7a0dde716ec5a1bdfc7d570f', NULL, NULL, '2026-11-22 15:06:06.708392+00', NULL, NULL);
INSERT INTO public.movement VALUES ('01a203cb-05f5-72ba-82a9-1b6e814f16bf', 0, 'in-sql', 'main', 'deducted', -1, 0, 6, 2, 'optimistic', 'committed', 'anonymous', NULL, NULL, NULL, NULL, '2026-11-22 15:06:06.710949+00', NULL, NULL);
INSERT INTO public.movement VALUES ('01a203cb-05fb-7341-8dba-b5b5369c2f9e', 0, 'in-sql', 'main', 'received', 4, 0, 10, NULL, NULL, 'committed', 'anonymous', 'adj-1', '\x4c54397d46a43c98a83d0c21155a6b36df42a598a6251fe314a7dbaccc92bb39', 'delivery', 'PO-4711', '2026-11-22 15:06:06.716159+00', NULL, NULL);
INSERT INTO public.movement VALUES ('01a203cb-05fd-73d9-a383-38558ee923f0', 0, 'in-redis', 'main', 'received', 10, 0, 10, NULL, NULL, 'committed', 'anonymous', NULL, NULL, NULL, NULL, '2026-11-22 15:06:06.718398+00', NULL, NULL);
INSERT INTO public.movement VALUES ('01a203cb-0601-736d-b86d-6695a804c3c9', 0, 'in-redis', 'main', 'deducted', -2, 0, 8, NULL, 'redis-lua', 'redis', 'anonymous', 'redis-1', '\x4a2b9ec3023b85c1fc6ea0634b949dc23a27877f633d92f5597a47e3fafa8c1e', NULL, NULL, '2026-11-22 15:06:06.721+00', 1795359966721, 0);
INSERT INTO public.movement VALUES ('01a203cb-0603-7769-bcd7-78af609f20f7', 0, 'in-redis', 'main', 'adjusted', -1, 0, 7, NULL, NULL, 'redis', 'anonymous', NULL, NULL, 'broken', 'R-0', '2026-11-22 15:06:06.723+00', 1795359966723, 0);
INSERT INTO public.stock VALUES ('1001', 'main', 5000, 0, 0, 1, 'sql', 0, '', 0, 0);
INSERT INTO public.stock VALUES ('1001-redis', 'main', 5000, 0, 0, 1, 'redis', 0, '', 0, 0);
INSERT INTO public.stock VALUES ('in-sql', '上海仓', 5, 0, 2, 1, 'sql', 0, '', 0, 0);
INSERT INTO public.stock VALUES ('in-sql', 'main', 10, 0, 0, 4, 'sql', 0, '', 0, 0);
INSERT INTO public.stock VALUES ('in-redis', 'main', 7, 0, 0, 1795359966719921, 'redis', 0, '', 1795359966723, 0);
ALTER TABLE ONLY public._sqlx_migrations
    ADD CONSTRAINT _sqlx_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.ledger
    ADD CONSTRAINT ledger_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.movement
    ADD CONSTRAINT movement_once_per_key UNIQUE (caller, idempotency_key);
ALTER TABLE ONLY public.movement
    ADD CONSTRAINT movement_pkey PRIMARY KEY (operation_id, line);
ALTER TABLE ONLY public.stock
    ADD CONSTRAINT stock_pkey PRIMARY KEY (sku, warehouse);
CREATE INDEX movement_of_sku ON public.movement USING btree (sku, operation_id);
