// Bags and lines: a take removes its item, and an answer of nothing is true.
//
// A take with an unknown result may hold one item, which an event may bring back to its old place.

package main

import (
	"fmt"
	"sort"
	"strings"
)

type item struct {
	place int
	key   string
	value string
}

// items is a state. A bag gives all items the place 0, and each has a key of its own: its value.
type items struct {
	there []item // by place, then by value
	held  []item
	next  int
}

type itemModel struct {
	inOrder bool // the items of one key leave in their order
	keyed   bool // values are pairs of a key and a value
}

func (m itemModel) start() state { return items{} }

func (m itemModel) events(calls []call) []event {
	var events []event
	for _, c := range calls {
		if c.name == "take" && !c.isKnown() {
			events = append(events, event{since: c.begin})
		}
	}
	return events
}

func (m itemModel) after(s state, c call) []state {
	now := s.(items)
	switch {
	case c.name == "put":
		return []state{m.put(now, c.argument)}
	case c.result == "null":
		if len(now.there) > 0 {
			return nil
		}
		return []state{now}
	}
	for _, first := range now.firsts() {
		if first.value == c.result {
			return []state{now.without(first)}
		}
	}
	return nil
}

func (m itemModel) effects(s state, c call) []state {
	now := s.(items)
	if c.name == "put" {
		return []state{m.put(now, c.argument)}
	}
	var next []state
	for _, first := range now.firsts() {
		taken := now.without(first)
		taken.held = added(taken.held, first)
		next = append(next, taken)
	}
	return next
}

func (m itemModel) happen(s state, _ event) []state {
	now := s.(items)
	var next []state
	for _, back := range now.held {
		next = append(next, items{added(now.there, back), removed(now.held, back), now.next})
	}
	return next
}

func (m itemModel) put(now items, value string) items {
	key, place := "", now.next
	if m.keyed {
		key, _ = pair(value)
	}
	if !m.inOrder {
		return items{added(now.there, item{0, value, value}), now.held, 0}
	}
	return items{added(now.there, item{place, key, value}), now.held, place + 1}
}

// firsts are the items that a take may find: the first one of each key.
func (s items) firsts() []item {
	var firsts []item
	seen := map[string]bool{}
	for _, each := range s.there {
		if !seen[each.key] {
			firsts = append(firsts, each)
		}
		seen[each.key] = true
	}
	return firsts
}

func (s items) without(gone item) items { return items{removed(s.there, gone), s.held, s.next} }

func (s items) String() string {
	var text strings.Builder
	fmt.Fprint(&text, s.next, s.there, s.held)
	return text.String()
}

func added(to []item, more item) []item {
	all := append(append([]item{}, to...), more)
	sort.Slice(all, func(i, j int) bool {
		if all[i].place != all[j].place {
			return all[i].place < all[j].place
		}
		return all[i].value < all[j].value
	})
	return all
}

func removed(from []item, gone item) []item {
	var rest []item
	for _, each := range from {
		if each != gone {
			rest = append(rest, each)
		}
	}
	return rest
}
