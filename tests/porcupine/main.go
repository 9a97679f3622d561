// Judges a history with Porcupine: MODEL is bag, fifo, keyed or leases, and TTR_US is the length of a lease.
//
// It prints sound, broken or undecided.

package main

import (
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

const patience = 10 * time.Second

type state interface{ String() string }

// event is a change that no call makes. It may happen from a moment on, or never.
type event struct {
	since int64
	lease string
}

type model interface {
	start() state
	after(state, call) []state   // a call with a known result: none if that is wrong
	effects(state, call) []state // a call with an unknown result, if it had an effect
	events([]call) []event
	happen(state, event) []state
}

func main() {
	verdict, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	fmt.Println(verdict)
}

func run(arguments []string) (string, error) {
	if len(arguments) != 3 {
		return "", fmt.Errorf("usage: checker MODEL TTR_US FILE")
	}
	ttr, err := strconv.ParseInt(arguments[1], 10, 64)
	if err != nil {
		return "", err
	}
	models := map[string]model{
		"bag":    itemModel{},
		"fifo":   itemModel{inOrder: true},
		"keyed":  itemModel{inOrder: true, keyed: true},
		"leases": leaseModel{ttr},
	}
	chosen, ok := models[arguments[0]]
	if !ok {
		return "", fmt.Errorf("%q is no model", arguments[0])
	}
	calls, err := read(arguments[2])
	if err != nil {
		return "", err
	}
	verdict := porcupine.CheckOperationsTimeout(porcupineModel(chosen), operations(chosen, calls), patience)
	return map[porcupine.CheckResult]string{
		porcupine.Ok: "sound", porcupine.Illegal: "broken", porcupine.Unknown: "undecided",
	}[verdict], nil
}

func operations(m model, calls []call) []porcupine.Operation {
	var all []porcupine.Operation
	for _, c := range calls {
		all = append(all, porcupine.Operation{Input: c, Call: c.begin, Return: c.end})
	}
	for _, e := range m.events(calls) {
		all = append(all, porcupine.Operation{Input: e, Call: e.since, Return: never})
	}
	return all
}

func porcupineModel(m model) porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{m.start()} },
		Step: func(now, input, _ interface{}) []interface{} { return step(m, now.(state), input) },
		Equal: func(one, other interface{}) bool {
			return one.(state).String() == other.(state).String()
		},
		Hash: func(one interface{}) uint64 {
			hash := fnv.New64a()
			hash.Write([]byte(one.(state).String()))
			return hash.Sum64()
		},
	}
	return nondeterministic.ToModel()
}

func step(m model, now state, input interface{}) []interface{} {
	var next []state
	switch given := input.(type) {
	case event:
		next = append(m.happen(now, given), now)
	case call:
		if given.isKnown() {
			next = m.after(now, given)
		} else {
			next = append(m.effects(now, given), now)
		}
	}
	all := []interface{}{}
	for _, each := range next {
		all = append(all, each)
	}
	return all
}
