//go:build invariants

package invariants

// Built reports whether shards are checked.
const Built = true
