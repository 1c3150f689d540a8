//! The timer of the boot clock when the process has no file left.

use std::fs::File;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use stocklock_locks::clock::{BootClock, Clock};
use stocklock_testkit::alone::alone;

/// The first sleep of the process finds no free file. It still ends, and so do later ones.
#[test]
fn sleep_without_free_file_ends_in_time() {
    alone("clock::sleep_without_free_file_ends_in_time", &[], || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        let time = Duration::from_millis(50);
        let sleep = || {
            let task = runtime.spawn(async move {
                let begin = BootClock.now();
                BootClock.sleep_until(begin + time).await;
                BootClock.now().since(begin)
            });
            runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), task).await })
        };
        let mut limit = getrlimit(Resource::Nofile);
        let before = limit.current;
        // All free numbers below the new limit are taken.
        let mut files = Vec::new();
        limit.current = Some(64);
        setrlimit(Resource::Nofile, limit).unwrap();
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        let slept = sleep();
        drop(files);
        limit.current = before;
        setrlimit(Resource::Nofile, limit).unwrap();
        assert!(slept.unwrap().unwrap() >= time);
        for _ in 0..5 {
            assert!(sleep().unwrap().unwrap() >= time);
        }
    });
}
