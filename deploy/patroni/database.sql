-- The database of the service.
\getenv password DATABASE_PASSWORD
CREATE ROLE stocklock LOGIN PASSWORD :'password';
CREATE DATABASE stocklock OWNER stocklock;
