// The JSON lines of a recorder, as calls.

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
)

// never is the end of a call with an unknown result: it may have its effect at any later moment.
const never = math.MaxInt64

type call struct {
	process  string
	name     string
	argument string // JSON, so that values can be compared
	result   string
	begin    int64
	end      int64
}

func (c call) isKnown() bool { return c.end != never }

type line struct {
	Process  string          `json:"process"`
	Number   int             `json:"number"`
	BeginUs  *int64          `json:"begin_us"`
	Name     string          `json:"name"`
	Argument json.RawMessage `json:"argument"`
	EndUs    *int64          `json:"end_us"`
	Result   json.RawMessage `json:"result"`
}

func read(path string) ([]call, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	places := map[string]int{}
	var calls []call
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var event line
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, err
		}
		key := fmt.Sprint(event.Process, " ", event.Number)
		if event.BeginUs != nil {
			places[key] = len(calls)
			argument := string(event.Argument)
			calls = append(calls, call{event.Process, event.Name, argument, "", *event.BeginUs, never})
		} else if place, ok := places[key]; ok {
			calls[place].end, calls[place].result = *event.EndUs, string(event.Result)
		} else {
			return nil, fmt.Errorf("%s: an end of a call without its begin", key)
		}
	}
	return calls, lines.Err()
}

// pair is the two parts of a JSON list, as JSON.
func pair(text string) (string, string) {
	var parts []json.RawMessage
	if err := json.Unmarshal([]byte(text), &parts); err != nil || len(parts) != 2 {
		panic(fmt.Sprintf("%q is no pair", text))
	}
	return string(parts[0]), string(parts[1])
}
