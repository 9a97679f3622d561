import { Database, Transaction } from 'foundationdb'

export interface Task {
  id: Buffer
  data: any
  pri: bigint
  attempts: bigint
  failures: bigint
  /** The end of the lease, in microseconds; 2n ** 63n - 1n is never. */
  until: bigint
  /** Aborted with 'lost' or 'cancelled': then stop. */
  signal: AbortSignal
}

export interface Options {
  /** The prefix of the root; by default the packed ("fdbqueue",). */
  root?: Buffer
  sessionS?: number
  /** For tasks and queues without their own. Below 1: no bound. */
  attempts?: number
  backoff?: [first: number, growth: number, cap: number]
  /** Told of errors of the heartbeat, the sweeps and the ends of sessions, which go on. */
  onTrouble?: (error: unknown) => void
}

export type Outcome = 'acked' | 'released' | 'failed' | 'buried' | 'cancelled' | 'lost'
export type Writes = (tn: Transaction) => void | Promise<void>

/** Another queue than this client understands. */
export class Refused extends Error {}
export class LeaseLost extends Error {}

export class Consumer {
  static open(db: Database, queue: string, options?: Options): Promise<Consumer>
  take(options?: { count?: number; timeoutMs?: number }): Promise<Task[]>
  ack(task: Task, writes?: Writes): Promise<Outcome>
  /** End the attempt without a failure; a delay in seconds. */
  release(task: Task, options?: { delay?: number }): Promise<Outcome>
  /** End the attempt with a failure: later again, or buried after the last one. */
  fail(task: Task, error: Error): Promise<Outcome>
  bury(task: Task, error: Error): Promise<Outcome>
  renew(tasks: Task[]): Promise<(bigint | 'lost' | 'cancelled')[]>
  work(handler: (task: Task) => unknown | Promise<unknown>, options?: { concurrency?: number }): Promise<void>
  /** Let `work` return after the tasks in hand. */
  stop(): void
  /** Release what is held, and end the session. */
  close(): Promise<void>
}

export function open(clusterFile?: string): Database

/**
 * Put tasks into a queue below a root, in a transaction of yours. `random` are 12 bytes, made before its retry loop; the times of
 * the options are seconds. Returns the ids.
 */
export function put(
  tr: Transaction, root: Buffer, queue: string, values: unknown[], random: Buffer, nowUs: number | bigint,
  options?: { pri?: number; ttl?: number; ttr?: number; delay?: number },
): Promise<Buffer[]>
