SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
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
INSERT INTO public._sqlx_migrations (version, description, installed_on, success, checksum, execution_time) VALUES (1, 'initial', '2026-11-26 16:25:49.805517+00', true, '\x4b1a0a05d316681b43f15613ef12093de544a32ac29c24077e4738bf58c64d3cee6b9a707ded29513bd7ccd5d1f9c259', 60515547);
ALTER TABLE ONLY public._sqlx_migrations
    ADD CONSTRAINT _sqlx_migrations_pkey PRIMARY KEY (version);
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
INSERT INTO public.distributed_lock_source (number, id) VALUES (1, 'ebf3135edd304f32aa3148afedb76796');
INSERT INTO public.ledger (id) VALUES ('77e74e510a29453b');
INSERT INTO public.movement (operation_id, line, sku, warehouse, kind, delta, held_delta, available_after, level_version, read_version, strategy, caller, idempotency_key, request_hash, reason, reference, reverses, returned, created_at) VALUES ('01a218ad-7233-7007-b5a6-5dbfbfe0758f', 0, 'a', 'main', 'received', 20, 0, 22, 1, NULL, NULL, 'anonymous', NULL, NULL, 'count', NULL, NULL, NULL, '2026-11-26 16:25:49.883938+00');
INSERT INTO public.movement (operation_id, line, sku, warehouse, kind, delta, held_delta, available_after, level_version, read_version, strategy, caller, idempotency_key, request_hash, reason, reference, reverses, returned, created_at) VALUES ('01a218ad-724a-7599-9d75-142887d198fe', 0, 'a', '上海仓', 'received', 5, 0, 5, 1, NULL, NULL, 'anonymous', NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-26 16:25:49.899085+00');
INSERT INTO public.movement (operation_id, line, sku, warehouse, kind, delta, held_delta, available_after, level_version, read_version, strategy, caller, idempotency_key, request_hash, reason, reference, reverses, returned, created_at) VALUES ('01a218ad-724e-74ea-80dd-c6e208ea15b6', 0, 'a', 'main', 'deducted', -3, 0, 19, 2, NULL, 'single-sql', 'anonymous', 'key-0', '\x7140b84367bcc3de7f86958dea4c2c8db917d2a44721c0aa10afa42eb8a7fa6d', NULL, 'R-1', NULL, NULL, '2026-11-26 16:25:49.903526+00');
INSERT INTO public.movement (operation_id, line, sku, warehouse, kind, delta, held_delta, available_after, level_version, read_version, strategy, caller, idempotency_key, request_hash, reason, reference, reverses, returned, created_at) VALUES ('01a218ad-7253-766f-bb5e-d8df0f79ae63', 0, 'a', 'main', 'deducted', -1, 0, 18, 3, NULL, 'group-commit', 'anonymous', 'key-1', '\xc9311394522a82a466b2ad4f72f6303bbc33bd9f21dfec5d50d48f93d781cf6f', NULL, NULL, NULL, NULL, '2026-11-26 16:25:49.908576+00');
INSERT INTO public.movement (operation_id, line, sku, warehouse, kind, delta, held_delta, available_after, level_version, read_version, strategy, caller, idempotency_key, request_hash, reason, reference, reverses, returned, created_at) VALUES ('01a218ad-7256-74c8-8142-437c64e0c125', 0, 'a', '上海仓', 'deducted', -1, 0, 4, 2, 1, 'optimistic', 'anonymous', 'key-2', '\xabc4c7f874b2a30b7a17742c6489c5aba749fc93278afd9616543103e908dd65', NULL, NULL, NULL, NULL, '2026-11-26 16:25:49.911713+00');
INSERT INTO public.movement (operation_id, line, sku, warehouse, kind, delta, held_delta, available_after, level_version, read_version, strategy, caller, idempotency_key, request_hash, reason, reference, reverses, returned, created_at) VALUES ('01a218ad-725a-77c5-9f5f-813f444e9668', 0, 'a', 'main', 'deducted', -2, 0, 16, 4, 3, 'sql-lock', 'anonymous', 'key-3', '\x025984583f388ab64769c54714b4bf9558b55a29655cca81b910cabcbd07c2dc', NULL, NULL, NULL, NULL, '2026-11-26 16:25:49.935407+00');
INSERT INTO public.movement (operation_id, line, sku, warehouse, kind, delta, held_delta, available_after, level_version, read_version, strategy, caller, idempotency_key, request_hash, reason, reference, reverses, returned, created_at) VALUES ('01a218ad-7276-753d-aaf7-44725970e3c0', 0, 'a', 'main', 'deducted', -1, 0, 15, 5, 4, 'no-lock', 'anonymous', 'key-4', '\xc9311394522a82a466b2ad4f72f6303bbc33bd9f21dfec5d50d48f93d781cf6f', NULL, NULL, NULL, NULL, '2026-11-26 16:25:49.944017+00');
INSERT INTO public.movement (operation_id, line, sku, warehouse, kind, delta, held_delta, available_after, level_version, read_version, strategy, caller, idempotency_key, request_hash, reason, reference, reverses, returned, created_at) VALUES ('01a218ad-727a-728a-badc-dbe1f2c3eb14', 0, 'a', 'main', 'adjusted', -1, 0, 14, 6, NULL, NULL, 'anonymous', 'key-5', '\xa0430b0d8f0e88f919a61071dd1c5cd9081f2ffac4c2726ad43fcc5b46ce6d0e', 'broken', 'R-2', NULL, NULL, '2026-11-26 16:25:49.947376+00');
INSERT INTO public.movement (operation_id, line, sku, warehouse, kind, delta, held_delta, available_after, level_version, read_version, strategy, caller, idempotency_key, request_hash, reason, reference, reverses, returned, created_at) VALUES ('01a218ad-727e-7375-bb69-eb80833c53fe', 0, 'a', 'main', 'returned', 1, 0, 15, 7, NULL, NULL, 'anonymous', 'key-6', '\x7d599881b6ed245fcb9fc12fa9a5cede701044888a02c0fce9e2fd14d5af2a31', 'wrong size', NULL, '01a218ad-724e-74ea-80dd-c6e208ea15b6', 1, '2026-11-26 16:25:49.953351+00');
INSERT INTO public.stock (sku, warehouse, on_hand, held, backorder_limit, version, fence, fence_source) VALUES ('a', '上海仓', 4, 0, 0, 2, 0, '');
INSERT INTO public.stock (sku, warehouse, on_hand, held, backorder_limit, version, fence, fence_source) VALUES ('a', 'main', 13, 0, 2, 7, 1795710349931968, 'postgres:ebf3135edd304f32aa3148afedb76796');
