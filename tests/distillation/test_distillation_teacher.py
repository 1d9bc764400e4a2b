"""What the teacher is shown and told."""

import collections

from metaagent_x import mas
from metaagent_x.distillation.teacher import shown_templates, teacher_prompts
from metaagent_x.mas.prompts import FULL
from metaagent_x.tasks.task import Task


def test_templates_are_of_the_tasks_kind_and_of_different_structures():
    for i in range(60):
        kind = "code" if i % 2 else "math"
        shown = shown_templates(Task(f"t/{i}", kind, ""), 0, 0, (2, 3))
        assert len(shown) in (2, 3) and {t.kind for t in shown} == {kind}
        assert len({t.structure for t in shown}) == len(shown)


def test_templates_follow_from_seed_task_and_attempt_and_all_are_shown_some_day():
    task = Task("t", "math", "")
    assert shown_templates(task, 1, 0, (2, 3)) == shown_templates(task, 1, 0, (2, 3))
    drawn = collections.Counter(t.name for i in range(200) for t in shown_templates(task, i, 0, (2, 3)))
    assert len(drawn) == 11  # every template for math
    assert sum(len(shown_templates(task, i, 0, (2, 3))) == 2 for i in range(200)) in range(70, 131)
    assert len(shown_templates(task, 0, 0, (8, 8))) == 8  # more than there are structures


def test_the_teacher_reads_the_students_prompt_and_the_templates_after_it():
    shown = shown_templates(Task("t", "code", ""), 0, 0, (2, 2))
    told = teacher_prompts(FULL, shown)
    assert told.designer_system.startswith(FULL.designer_system)
    for template in shown:
        assert f"{template.when}\n```python\n{template.native}```" in told.designer_system
    task = Task("t", "code", "Print {x}.")
    assert told.designer_user(task) == FULL.designer_user(task) and told.for_script() == FULL.for_script()


def test_without_templates_teacher_and_student_are_told_the_same():
    assert teacher_prompts(FULL, []) is FULL


def test_what_is_shown_can_be_run():
    for template in shown_templates(Task("t", "math", ""), 0, 0, (6, 6)):
        assert mas.lint(mas.Script.of(template.native)) == []
