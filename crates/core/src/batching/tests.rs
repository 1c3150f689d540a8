//! Tests of the queue, with a call that ends when the test lets it.

use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};

use super::*;

const LIMIT: Duration = Duration::from_secs(2);

/// Answers each job with its own number.
#[derive(Debug)]
struct Echo {
    /// One permit for each call that may end.
    ends: Semaphore,
    /// The batches that were called.
    called: Mutex<Vec<Vec<u32>>>,
}

impl BatchCall for Echo {
    type Level = &'static str;
    type Job = u32;
    type Answer = Result<u32, &'static str>;

    const CALLS: usize = 2;

    fn batch_size<'a>(&self, waiting: impl ExactSizeIterator<Item = &'a u32>) -> usize {
        waiting.len().min(3)
    }

    async fn call(&self, jobs: &[u32]) -> Vec<Self::Answer> {
        self.called.lock().expect("no panic").push(jobs.to_vec());
        let end = self.ends.acquire().await;
        end.expect("never closed").forget();
        jobs.iter().copied().map(Ok).collect()
    }

    async fn patience(&self) {
        sleep(LIMIT).await;
    }

    fn give_up(&self, waited: Duration, last: Option<&mut Self::Answer>) -> Option<Self::Answer> {
        (last.is_none() && waited >= LIMIT / 2).then_some(Err("given up"))
    }
}

/// The tasks of the calls.
#[derive(Debug, Default)]
struct Tasks(Mutex<Vec<JoinHandle<()>>>);

impl Spawn for Tasks {
    fn spawn(&self, task: Detached) {
        self.0.lock().expect("no panic").push(tokio::spawn(task));
    }
}

struct Scene {
    batches: Batches<Echo>,
    tasks: Arc<Tasks>,
}

impl Scene {
    fn new() -> Self {
        let echo = Echo {
            ends: Semaphore::new(0),
            called: Mutex::default(),
        };
        let tasks = Arc::new(Tasks::default());
        let batches = Batches::new(echo, Arc::clone(&tasks) as _);
        Self { batches, tasks }
    }

    /// A caller who has entered the queue.
    async fn caller(
        &self,
        level: &'static str,
        job: u32,
    ) -> JoinHandle<Option<Result<u32, &'static str>>> {
        let batches = self.batches.clone();
        let caller = tokio::spawn(async move { batches.run(level, job).await });
        for _ in 0..4 {
            yield_now().await;
        }
        caller
    }

    fn called(&self) -> Vec<Vec<u32>> {
        self.batches.call.called.lock().expect("no panic").clone()
    }

    async fn end_calls(&self, number: usize) {
        self.batches.call.ends.add_permits(number);
        for _ in 0..8 {
            yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_gather_while_calls_are_in_flight() {
    let scene = Scene::new();
    let mut callers = Vec::new();
    for job in 1..=6 {
        callers.push(scene.caller("hot", job).await);
    }
    let other = scene.caller("cold", 7).await;
    // Each level has calls of its own; a batch has at most three jobs.
    assert_eq!(scene.called(), [vec![1], vec![2], vec![7]]);
    scene.end_calls(3).await;
    assert_eq!(scene.called()[3..], [vec![3, 4, 5], vec![6]]);
    scene.end_calls(2).await;
    for (caller, job) in callers.into_iter().zip(1..) {
        assert_eq!(caller.await.unwrap(), Some(Ok(job)));
    }
    assert_eq!(other.await.unwrap(), Some(Ok(7)));
    assert!(scene.batches.queues().is_empty());
}

#[tokio::test(start_paused = true)]
async fn caller_who_leaves_cancels_no_job() {
    let scene = Scene::new();
    let first = scene.caller("hot", 1).await;
    let _second = scene.caller("hot", 2).await;
    let third = scene.caller("hot", 3).await;
    let fourth = scene.caller("hot", 4).await;
    first.abort();
    third.abort();
    scene.end_calls(4).await;
    assert_eq!(scene.called(), [vec![1], vec![2], vec![3, 4]]);
    assert_eq!(fourth.await.unwrap(), Some(Ok(4)));
}

#[tokio::test(start_paused = true)]
async fn jobs_behind_a_stuck_call_are_given_up() {
    let scene = Scene::new();
    let stuck = [scene.caller("hot", 1).await, scene.caller("hot", 2).await];
    let early = scene.caller("hot", 3).await;
    sleep(LIMIT / 2 + LIMIT / 4).await;
    let late = scene.caller("hot", 4).await;
    let early = timeout(LIMIT, early).await.expect("given up in time");
    assert_eq!(early.unwrap(), Some(Err("given up")));
    scene.end_calls(3).await;
    assert_eq!(late.await.unwrap(), Some(Ok(4)));
    for caller in stuck {
        assert!(caller.await.unwrap().is_some_and(|answer| answer.is_ok()));
    }
    assert_eq!(scene.called(), [vec![1], vec![2], vec![4]]);
}

#[tokio::test(start_paused = true)]
async fn aborted_calls_fail_their_queue_and_free_their_slot() {
    let scene = Scene::new();
    let mut callers = Vec::new();
    for job in 1..=5 {
        callers.push(scene.caller("hot", job).await);
    }
    let abort = |number: usize| scene.tasks.0.lock().expect("no panic")[number].abort();
    abort(1);
    yield_now().await;
    // The other call still serves the queue, and the aborted one freed its slot.
    assert_eq!(callers.remove(1).await.unwrap(), None);
    callers.push(scene.caller("hot", 6).await);
    assert_eq!(scene.called(), [vec![1], vec![2], vec![3, 4, 5]]);
    abort(0);
    abort(2);
    for caller in callers {
        assert_eq!(caller.await.unwrap(), None);
    }
    assert!(scene.batches.queues().is_empty());
}
