// Leases: a task that was taken is at no other take until it is released or its lease is over.

package main

import (
	"fmt"
	"sort"
)

const refused = `"refused"`

type task struct {
	value string
	lease string // empty for a task that is ready
	until int64  // the first moment at which the lease may end
}

// tasks is a state, by value.
type tasks []task

type leaseModel struct{ ttr int64 }

func (m leaseModel) start() state { return tasks{} }

// events are the ends of leases: for each take and each renewal, from its begin and the ttr on.
func (m leaseModel) events(calls []call) []event {
	var events []event
	for _, c := range calls {
		switch {
		case c.name == "take" && !c.isKnown():
			events = append(events, event{c.begin, unknownLease(c)})
		case c.name == "take" && c.result != "null":
			_, lease := pair(c.result)
			events = append(events, event{c.begin + m.ttr, lease})
		case c.name == "renew" && c.isKnown() && c.result != refused:
			_, lease := pair(c.argument)
			events = append(events, event{c.begin + m.ttr, lease})
		}
	}
	return events
}

func (m leaseModel) after(s state, c call) []state {
	now := s.(tasks)
	switch c.name {
	case "put":
		return []state{now.with(task{value: c.argument})}
	case "take":
		return m.take(now, c)
	}
	held := now.held(c)
	if (c.result == refused) != (held == nil) {
		return nil
	}
	if held == nil {
		return []state{now}
	}
	return []state{m.end(now, *held, c)}
}

func (m leaseModel) effects(s state, c call) []state {
	now := s.(tasks)
	switch c.name {
	case "put":
		return []state{now.with(task{value: c.argument})}
	case "take":
		var next []state
		for _, each := range now {
			if each.lease == "" {
				next = append(next, now.with(task{each.value, unknownLease(c), c.begin}))
			}
		}
		return next
	case "renew": // it can only delay the end, which may come late anyway
		return nil
	}
	if held := now.held(c); held != nil {
		return []state{m.end(now, *held, c)}
	}
	return nil
}

func (m leaseModel) happen(s state, e event) []state {
	now := s.(tasks)
	for _, each := range now {
		if each.lease == e.lease && each.until <= e.since {
			return []state{now.with(task{value: each.value})}
		}
	}
	return nil
}

func (m leaseModel) take(now tasks, c call) []state {
	if c.result == "null" {
		for _, each := range now {
			if each.lease == "" {
				return nil
			}
		}
		return []state{now}
	}
	value, lease := pair(c.result)
	for _, each := range now {
		if each.value == value && each.lease == "" {
			return []state{now.with(task{value, lease, c.begin + m.ttr})}
		}
	}
	return nil
}

func (m leaseModel) end(now tasks, held task, c call) tasks {
	switch c.name {
	case "ack":
		return now.without(held.value)
	case "release":
		return now.with(task{value: held.value})
	}
	return now.with(task{held.value, held.lease, c.begin + m.ttr})
}

func unknownLease(c call) string { return fmt.Sprint("unknown ", c.process, " ", c.begin) }

// held is the task of the lease that a call names.
func (s tasks) held(c call) *task {
	value, lease := pair(c.argument)
	for _, each := range s {
		if each.value == value && each.lease == lease {
			return &each
		}
	}
	return nil
}

func (s tasks) without(value string) tasks {
	rest := tasks{}
	for _, each := range s {
		if each.value != value {
			rest = append(rest, each)
		}
	}
	return rest
}

// with is the state after a change of one task.
func (s tasks) with(changed task) tasks {
	all := append(s.without(changed.value), changed)
	sort.Slice(all, func(i, j int) bool { return all[i].value < all[j].value })
	return all
}

func (s tasks) String() string { return fmt.Sprint([]task(s)) }
